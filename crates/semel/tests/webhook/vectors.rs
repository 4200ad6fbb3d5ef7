//! What the providers' own documentation has as an example.

use semel::inbox::webhook::{Github, PlainHmac, StandardWebhooks, Verified};

use crate::request::Post;

#[test]
fn githubs_example_is_believed() {
    let github = Github::new(["It's a Secret to Everybody"]).unwrap();
    let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let delivery = "72d3162e-cc78-11e3-81ab-4c9367dc0958";
    let headers =
        [("X-Hub-Signature-256", signature), ("X-GitHub-Delivery", delivery), ("X-GitHub-Event", "issues")];
    let post = Post::new(&headers, b"Hello, World!");
    let verified = Verified { id: delivery.to_owned(), kind: Some("issues".to_owned()), signed_at_s: None };
    assert_eq!(post.to(&github, 0), Ok(verified));
    let by_body = post.to(&github.id_of_body(), 0).unwrap();
    assert_eq!(by_body.id, "dffd6021bb2bd5b0af676290809ec3a53191dd81c7f70a4b28688a362182986f");
}

#[test]
fn the_example_of_standard_webhooks_is_believed() {
    let verifier = StandardWebhooks::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap();
    for prefix in ["webhook", "svix"] {
        let [id, at, signature] = ["id", "timestamp", "signature"].map(|name| format!("{prefix}-{name}"));
        let headers = [
            (&*id, "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            (&*at, "1614265330"),
            (&*signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ];
        let verified = Post::new(&headers, br#"{"test": 2432232314}"#).to(&verifier, 1_614_265_330).unwrap();
        assert_eq!(verified.id, "msg_p5jXN8AQM9LWM0D4loKWxJek");
        assert_eq!(verified.signed_at_s, Some(1_614_265_330));
    }
}

#[test]
fn slacks_example_is_believed_as_plain_hmac() {
    let body = b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&\
        channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&\
        response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&\
        trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    let headers = [
        ("X-Slack-Signature", "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"),
        ("X-Slack-Request-Timestamp", "1531420618"),
    ];
    let slack = PlainHmac::new("x-slack-signature", ["8f742231b10e8888abcd99yyyzzz85a5"]).unwrap();
    let slack = slack.prefix("v0=").timestamp("x-slack-request-timestamp").unwrap().signed("v0:", ":");
    let verified = Post::new(&headers, body).to(&slack, 1_531_420_618).unwrap();
    assert_eq!((verified.id.len(), verified.signed_at_s), (64, Some(1_531_420_618)));
}
