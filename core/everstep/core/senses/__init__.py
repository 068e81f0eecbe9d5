"""What a machine's own senses mean: parsers and deciders; reading is `everstep.agent.probes`."""
