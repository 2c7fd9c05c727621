// Two workers of a cluster that run burn.js; the master sleeps.
//
// node --perf-prof --perf-prof-unwinding-info --interpreted-frames-native-stack cluster.js [SECONDS]
'use strict';
const cluster = require('cluster');

// What the workers say is theirs: the master's line is the one that is waited for.
cluster.setupPrimary({ exec: `${__dirname}/burn.js`, args: process.argv.slice(2), silent: true });
let online = 0;
for (let worker = 0; worker < 2; worker++) {
  cluster.fork().on('online', () => {
    online++;
    if (online === 2) console.log(`ready pid=${process.pid}`);
  });
}
