<?php
// Nothing but calls: the most that a flag can cost which changes how functions are entered.
function fib($n)
{
    return $n < 2 ? $n : fib($n - 1) + fib($n - 2);
}

$sum = 0;
for ($i = 0; $i < (int)$argv[1]; $i++) {
    $sum += fib(25 + $i % 2);
}
echo "$sum\n";
