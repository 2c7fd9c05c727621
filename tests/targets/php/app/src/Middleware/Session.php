<?php

declare(strict_types=1);

namespace App\Middleware;

use App\Http\Middleware;
use App\Http\Request;

final class Session implements Middleware
{
    private int $open = 0;

    public function process(Request $request, callable $next): string
    {
        $this->open++;
        try {
            return $next($request);
        } finally {
            $this->open--;
        }
    }
}
