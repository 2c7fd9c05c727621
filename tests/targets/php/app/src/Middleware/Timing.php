<?php

declare(strict_types=1);

namespace App\Middleware;

use App\Http\Middleware;
use App\Http\Request;

final class Timing implements Middleware
{
    private int $ns = 0;

    public function process(Request $request, callable $next): string
    {
        $begin = hrtime(true);
        $body = $next($request);
        $this->ns += hrtime(true) - $begin;
        return $body;
    }
}
