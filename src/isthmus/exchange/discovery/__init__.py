"""How nodes that know nothing of each other come to know each other."""
