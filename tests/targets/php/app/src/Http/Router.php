<?php

declare(strict_types=1);

namespace App\Http;

final class Router implements Handler
{
    /** @var array<string, callable> */
    private array $routes = [];

    public function add(string $pattern, callable $action): void
    {
        $this->routes[$pattern] = $action;
    }

    public function handle(Request $request): string
    {
        foreach ($this->routes as $pattern => $action) {
            if (preg_match($pattern, $request->path, $matches) === 1) {
                return $action($request, (int)$matches['id']);
            }
        }
        return 'not found';
    }
}
