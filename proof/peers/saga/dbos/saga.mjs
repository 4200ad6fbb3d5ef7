// A saga of three steps that do nothing, as a DBOS workflow, and its callers.
import readline from "node:readline";
import { DBOS } from "@dbos-inc/dbos-sdk";

let steps = 0;

async function step(number) {
  steps += 1;
  return number;
}

async function run() {
  let sum = 0;
  for (const number of [1, 2, 3]) {
    sum += await DBOS.runStep(() => step(number), { name: `step ${number}` });
  }
  return sum;
}

const saga = DBOS.registerWorkflow(run, { name: "saga" });

async function call(until) {
  let ended = 0;
  while (performance.now() < until) {
    const sum = await saga();
    if (sum !== 6) throw new Error(`a saga returned ${sum}`);
    ended += 1;
  }
  return ended;
}

DBOS.setConfig({ name: "peer", systemDatabaseUrl: process.argv[2], logLevel: "warn" });
await DBOS.launch();
console.log("ready");

// `run SECONDS CALLERS` is answered with `ended SAGAS`, anything else with `steps N`.
for await (const line of readline.createInterface({ input: process.stdin })) {
  const [word, seconds, callers] = line.split(" ");
  if (word === "run") {
    const until = performance.now() + 1000 * Number(seconds);
    const ended = await Promise.all(Array.from({ length: Number(callers) }, () => call(until)));
    console.log(`ended ${ended.reduce((sum, one) => sum + one, 0)}`);
  } else {
    console.log(`steps ${steps}`);
  }
}
process.exit(0);
