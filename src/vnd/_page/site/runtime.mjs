// onnxruntime-web inside the page: opens networks from bytes, and runs them in one thread.

import { unpack } from "#files";

let library;

/** Start the runtime from the files of the page. */
export async function start() {
  const [module, wasm] = await Promise.all([unpack("runtime-module"), unpack("runtime-wasm")]);
  const address = URL.createObjectURL(new Blob([module], { type: "text/javascript" }));
  library = await import(address);
  library.env.wasm.numThreads = 1;
  library.env.wasm.wasmBinary = wasm;
  library.env.logLevel = "error";
}

/** A network of the page, ready to run. */
export async function open(name) {
  const bytes = await unpack(`network-${name}`);
  const session = await library.InferenceSession.create(bytes, { graphOptimizationLevel: "all", logSeverityLevel: 3 });
  return new Network(name, bytes, session);
}

class Network {
  constructor(name, bytes, session) {
    Object.assign(this, { name, bytes, session });
  }

  /** Outputs by name, {data, dims}, of inputs by name: [values, shape], or a whole number. */
  async run(given) {
    const feeds = {};
    for (const [name, value] of Object.entries(given)) {
      feeds[name] =
        typeof value === "number"
          ? new library.Tensor("int64", BigInt64Array.of(BigInt(value)), [])
          : new library.Tensor("float32", ...value);
    }
    const found = {};
    for (const [name, value] of Object.entries(await this.session.run(feeds))) {
      found[name] = { data: value.data, dims: value.dims };
    }
    return found;
  }

  /** The first output. */
  async first(given) {
    return (await this.run(given))[this.session.outputNames[0]];
  }
}

/**
 * Milliseconds of some calls, the least of several rounds: in each round every call has its turn, as often as it takes to
 * be told from the clock's ticks. What else the machine does can only add to that.
 */
export async function milliseconds(calls, rounds = 7, least = 8) {
  const found = calls.map(() => Infinity);
  for (const call of calls) await call();
  for (let round = 0; round < rounds; round++) {
    for (const [index, call] of calls.entries()) {
      const start = performance.now();
      let count = 0;
      do {
        await call();
        count += 1;
      } while (performance.now() - start < least);
      found[index] = Math.min(found[index], (performance.now() - start) / count);
    }
    await new Promise((done) => setTimeout(done)); // the page answers in between
  }
  return found;
}
