<?php
// An application as Composer's are: namespaces, classes that are loaded by PSR-4, interfaces, middleware in closures, a router, a
// template, generators. 75 % of the time is in Items::leafHot, 25 % in Items::leafCold:
//
//   index.php -> Kernel::handle -> Pipeline::handle -> Pipeline::{closure} -> Timing::process -> Pipeline::{closure}
//     -> Session::process -> Pipeline::{closure} -> Router::handle
//     -> ItemController::show   -> View::render -> page.php -> Items::rows                                      -> Items::leafHot
//     -> ItemController::search -> View::render -> page.php -> Items::found -> array_map -> Items::{closure}    -> Items::leafCold
//
// php index.php [SECONDS], or as the script of a server, where a request lasts 0.2 s or ?seconds=

declare(strict_types=1);

use App\Http\Request;
use App\Kernel;

require __DIR__ . '/../vendor/autoload.php';

$kernel = Kernel::boot();
echo 'ready pid=', getmypid(), "\n";
$end = microtime(true) + (float)($argv[1] ?? $_GET['seconds'] ?? 0.2);
$bytes = 0;
$noise = getmypid();
while (microtime(true) < $end) {
    // A tenth to nineteen tenths of 20000, at random: calls of similar length fall into step with a profiler's clock.
    $noise = ($noise * 1103515245 + 12345) & 0x7fffffff;
    $length = 2000 + ($noise >> 8) % 36001;
    $bytes += strlen($kernel->handle(new Request('/items/7', $length)));
    $bytes += strlen($kernel->handle(new Request('/search/7', $length)));
}
echo "$bytes bytes\n";
