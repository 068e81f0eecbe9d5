"""Who holds a hung job up: from the stacks and flight recorders of all ranks to suspects."""
