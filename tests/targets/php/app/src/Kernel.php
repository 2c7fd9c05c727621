<?php

declare(strict_types=1);

namespace App;

use App\Catalog\Items;
use App\Controller\ItemController;
use App\Http\Handler;
use App\Http\Pipeline;
use App\Http\Request;
use App\Http\Router;
use App\Middleware\Session;
use App\Middleware\Timing;
use App\View\View;

final class Kernel implements Handler
{
    private Handler $handler;

    private function __construct(Handler $handler)
    {
        $this->handler = $handler;
    }

    public static function boot(): self
    {
        $controller = new ItemController(new View(__DIR__ . '/../templates'), new Items());
        $router = new Router();
        $router->add('~^/items/(?<id>\d+)$~', [$controller, 'show']);
        $router->add('~^/search/(?<id>\d+)$~', [$controller, 'search']);
        return new self(new Pipeline([new Timing(), new Session()], $router));
    }

    public function handle(Request $request): string
    {
        return $this->handler->handle($request);
    }
}
