<?php

declare(strict_types=1);

namespace App\Http;

final class Pipeline implements Handler
{
    /** @var callable */
    private $first;

    /** @param Middleware[] $middlewares */
    public function __construct(array $middlewares, Handler $last)
    {
        $next = static fn (Request $request): string => $last->handle($request);
        foreach (array_reverse($middlewares) as $middleware) {
            $next = static fn (Request $request): string => $middleware->process($request, $next);
        }
        $this->first = $next;
    }

    public function handle(Request $request): string
    {
        return ($this->first)($request);
    }
}
