// Runs the engine of Perfetto's page outside a browser: node perfetto_engine.js FOLDER < requests > replies
// The page starts it as a worker, hands it a port, and speaks TraceProcessorRpcStream with it through that.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];
const exit = process.exit;

globalThis.self = globalThis;
globalThis.location = { href: folder };
globalThis.importScripts = () => {};
globalThis.WorkerGlobalScope = class {};
globalThis.XMLHttpRequest = class {
  open(_method, url) { this.file = path.join(folder, path.basename(url)); }
  send() {
    this.response = new Uint8Array(fs.readFileSync(this.file)).buffer;
    this.status = 200;
  }
};
delete globalThis.process; // or the engine would take this for something else than a browser

vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));
const port = { postMessage: (reply) => fs.writeSync(1, reply) };
globalThis.onmessage({ data: port });
setTimeout(() => { // when the engine has finished what it does at its start
  port.onmessage({ data: new Uint8Array(fs.readFileSync(0)) });
  exit(0);
}, 0);
