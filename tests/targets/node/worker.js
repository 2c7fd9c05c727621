// Three threads, each with an isolate and code of its own: hotMain in the first, hotWorker in two workers.
//
// node --perf-prof worker.js [SECONDS]
'use strict';
const fs = require('fs');
const { Worker, isMainThread, workerData } = require('worker_threads');

function hotMain(n) {
  let x = 88172645;
  for (let i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; }
  return x | 0;
}
function hotWorker(n) {
  let x = 12345678;
  for (let i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; }
  return x | 0;
}
function burn(hot, end) {
  let sum = 0;
  while (Date.now() < end) sum ^= hot(20000);
  return sum;
}

if (isMainThread) {
  const end = Date.now() + 1000 * Number(process.argv[2] || 2);
  const workers = [0, 1].map(() => new Worker(__filename, { workerData: end }));
  // Worker start-up needs this thread's event loop, so burn only when both are running.
  let online = 0;
  const start = () => {
    if (++online < workers.length) return;
    fs.writeSync(1, `ready pid=${process.pid}\n`);
    console.log('sum', burn(hotMain, end));
  };
  workers.forEach((worker) => worker.on('online', start));
} else {
  burn(hotWorker, workerData);
}
