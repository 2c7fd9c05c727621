<h1><?= htmlspecialchars($title) ?></h1>
<ul>
<?php foreach ($rows as $row): ?>
<li><?= $row ?></li>
<?php endforeach ?>
</ul>
