"""Foreign shapes and names, made ours in one place each; nothing else may know them."""
