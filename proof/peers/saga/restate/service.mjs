// A saga of three steps that do nothing, as a Restate service. Its callers are threads of `cargo xtask bench`.
import http2 from "node:http2";
import readline from "node:readline";

// The SDK uses it; Node.js has it since version 22.
Promise.withResolvers ??= function () {
  let resolve, reject;
  const promise = new this((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
};
const restate = await import("@restatedev/restate-sdk");

let steps = 0;

async function step(number) {
  steps += 1;
  return number;
}

const saga = restate.service({
  name: "saga",
  handlers: {
    run: async (context) => {
      let sum = 0;
      for (const number of [1, 2, 3]) {
        sum += await context.run(`step ${number}`, () => step(number));
      }
      return sum;
    },
  },
});

const [host, port] = process.argv[2].split(":");
const server = http2.createServer(restate.createEndpointHandler({ services: [saga] }));
server.listen(Number(port), host, () => console.log("ready"));

// One line in, one line out; the end of the input is the end of the service.
const input = readline.createInterface({ input: process.stdin });
input.on("line", () => console.log(`steps ${steps}`));
input.on("close", () => process.exit(0));
