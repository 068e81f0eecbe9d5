"""The machine's senses: thin readers; what a reading means is `everstep.core.senses`."""
