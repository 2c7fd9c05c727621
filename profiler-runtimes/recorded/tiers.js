// A known stack: main calls outer, outer a method, the method a closure, the closure the leaf.
// Each line that a test knows is marked with the name of what is called there.
'use strict';
function leaf(count) {
  let sum = 0;
  for (let i = 0; i < count; i++) {
    sum = (sum * 31 + i) % 1000003;
  }
  pause(); // leaf calls pause
  return sum;
}
function pause() {
  const until = Date.now() + 1;
  let spins = 0;
  while (Date.now() < until) { // pause waits
    spins++;
  }
  return spins;
}
const table = {
  closure: (count) => {
    return leaf(count) + 1; // closure calls leaf
  },
};
class Worker {
  constructor(count) {
    this.count = count;
  }
  method() {
    return table.closure(this.count) + // method calls closure
      this.count;
  }
}
function outer(worker) {
  return worker
    .method(); // outer calls method
}
function main() {
  const worker = new Worker(100);
  for (;;) {
    outer(worker); // main calls outer
  }
}
if (process.argv[2] === 'thread') {
  const { Worker: Thread, isMainThread } = require('worker_threads');
  if (isMainThread) {
    new Thread(__filename, { argv: ['thread'] });
  } else {
    main();
  }
} else if (process.argv[2] === 'context') {
  const source = require('fs').readFileSync(__filename, 'utf8').replace(/if \(process[^]*$/, 'main();');
  require('vm').runInContext(source, require('vm').createContext({ Date }), { filename: 'in-context.js' });
} else {
  main();
}
