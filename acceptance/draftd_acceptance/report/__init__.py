"""What a run came to, as a page to look at and as Markdown: the verdict first, then what it rests on."""
