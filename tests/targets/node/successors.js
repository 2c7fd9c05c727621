// Workers one after the other, each with a script of its own. Isolates count their scripts from one, and all are of the same
// length: they differ by the number of the function that runs, which is in the thread's name as well.
//
// node successors.js [SECONDS]
'use strict';
const fs = require('fs');
const { Worker } = require('worker_threads');

const script = (name) => `'use strict';
require('fs').writeFileSync('/proc/thread-self/comm', '${name}');
function ${name}(n) {
  let x = 88172645;
  for (let i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; }
  return x | 0;
}
const end = Date.now() + 400;
let sum = 0;
while (Date.now() < end) sum ^= ${name}(20000);
`;

const end = Date.now() + 1000 * Number(process.argv[2] || 4);
function next(number) {
  if (Date.now() > end) return;
  const worker = new Worker(script(`run${String(number).padStart(6, '0')}`), { eval: true });
  worker.on('exit', () => next(number + 1));
}
fs.writeSync(1, `ready pid=${process.pid}\n`);
next(0);
