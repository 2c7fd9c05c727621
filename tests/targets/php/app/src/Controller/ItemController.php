<?php

declare(strict_types=1);

namespace App\Controller;

use App\Catalog\Items;
use App\Http\Request;
use App\View\View;

final class ItemController
{
    private View $view;
    private Items $items;

    public function __construct(View $view, Items $items)
    {
        $this->view = $view;
        $this->items = $items;
    }

    public function show(Request $request, int $id): string
    {
        return $this->view->render('page.php', ['title' => "item $id", 'rows' => $this->items->rows($request->length)]);
    }

    public function search(Request $request, int $id): string
    {
        return $this->view->render('page.php', ['title' => "like $id", 'rows' => $this->items->found($request->length)]);
    }
}
