"""How questions and answers are told, checked, remembered and run, on Flower."""
