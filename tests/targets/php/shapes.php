<?php
// Each way in which PHP calls PHP, with a leaf of its own for each, so that a stack says which way it came: functions of
// functions, methods, closures, PHP's own functions that call back, generators, magic methods, what was evaluated, iterators,
// destructors, what is caught. All leaves burn the same time.
//
// php shapes.php [SECONDS]

function burn()
{
    $x = 88172645;
    for ($i = 0; $i < 3000; $i++) {
        $x ^= ($x << 13) & 0xffffffff;
        $x ^= $x >> 17;
    }
    return $x;
}

function leaf_recursive() { return burn(); }
function leaf_method() { return burn(); }
function leaf_static() { return burn(); }
function leaf_closure() { return burn(); }
function leaf_mapped() { return burn(); }
function leaf_sorted() { return burn(); }
function leaf_generated() { return burn(); }
function leaf_delegated() { return burn(); }
function leaf_magic() { return burn(); }
function leaf_forwarded() { return burn(); }
function leaf_evaluated() { return burn(); }
function leaf_iterated() { return burn(); }
function leaf_destroyed() { return burn(); }
function leaf_caught() { return burn(); }

function recurse($n) { return $n > 0 ? recurse($n - 1) : leaf_recursive(); }

class Shape
{
    private $known = [];

    function method() { return leaf_method(); }
    static function classMethod() { return leaf_static(); }
    function __toString() { return (string)leaf_magic(); }
    function __call($name, $arguments) { return leaf_forwarded(); }
}

class Dying
{
    function __destruct() { leaf_destroyed(); }
}

class Iterated implements IteratorAggregate
{
    function getIterator(): Iterator { leaf_iterated(); return new ArrayIterator([1]); }
}

function numbers() { for ($i = 0; $i < 2; $i++) { leaf_generated(); yield $i; } }
function inner_numbers() { leaf_delegated(); yield 1; }
function outer_numbers() { yield from inner_numbers(); }
function outermost_numbers() { yield from outer_numbers(); }
function thrower() { throw new RuntimeException('x'); }

eval('function evaluated() { return leaf_evaluated(); }');

function turn($shape)
{
    recurse(20);
    $shape->method();
    Shape::classMethod();
    $closure = function ($n) { return leaf_closure() + $n; };
    $closure(1);
    array_map(function ($n) { return leaf_mapped() + $n; }, [1, 2]);
    $numbers = [3, 1];
    usort($numbers, function ($a, $b) { leaf_sorted(); return $a <=> $b; });
    array_map('strtoupper', ['a', 'b']);
    foreach (numbers() as $number);
    foreach (outermost_numbers() as $number);
    $text = "$shape";
    $shape->nobody(1);
    evaluated();
    foreach (new Iterated as $number);
    new Dying;
    try { thrower(); } catch (RuntimeException) { leaf_caught(); }
}

echo 'ready pid=', getmypid(), "\n";
$end = microtime(true) + (float)($argv[1] ?? 4);
$shape = new Shape;
while (microtime(true) < $end) {
    turn($shape);
}
