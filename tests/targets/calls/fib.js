// Nothing but calls: the most that a flag can cost which changes how functions are entered.
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
let sum = 0;
for (let i = 0; i < Number(process.argv[2]); i++) sum += fib(25 + i % 2);
console.log(sum);
