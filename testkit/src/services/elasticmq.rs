//! ElasticMQ, which speaks the protocol of SQS.

use super::error::Result;
use super::jars::{JAVA, Jars};
use super::probe;
use super::recipe::{Need, Place, Recipe, Task, command};

const JARS: Jars = Jars { name: "elasticmq", pom: include_str!("../../elasticmq/pom.xml") };

pub(super) struct Elasticmq;

impl Recipe for Elasticmq {
    fn needs(&self) -> &'static [Need] {
        JAVA
    }

    fn ports(&self) -> usize {
        1
    }

    fn fetch(&self) -> Result<()> {
        JARS.fetch().map(drop)
    }

    fn prepare(&self, _at: &Place) -> Result<()> {
        Ok(())
    }

    fn tasks(&self, at: &Place) -> Result<Vec<Task>> {
        let port = at.port(0);
        let config = at.dir.join("elasticmq.conf");
        // Strict limits: what real SQS refuses is refused here too.
        let text = format!(
            "include classpath(\"application.conf\")\n\
             node-address {{ protocol = http, host = 127.0.0.1, port = {port}, context-path = \"\" }}\n\
             rest-sqs {{ enabled = true, bind-hostname = \"127.0.0.1\", bind-port = {port}, sqs-limits = strict }}\n\
             rest-stats {{ enabled = false }}\n"
        );
        std::fs::write(&config, text)?;
        let mut command = command("java")?;
        command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
        command.arg(format!("-Dconfig.file={}", config.display()));
        command.arg("-cp").arg(JARS.class_path()).arg("org.elasticmq.server.Main").current_dir(&at.data);
        Ok(vec![Task { role: "server".to_owned(), command, port }])
    }

    fn is_ready(&self, at: &Place) -> bool {
        probe::http_ok(at.port(0), "/health")
    }

    fn url(&self, at: &Place) -> String {
        format!("http://127.0.0.1:{}", at.port(0))
    }
}
