"""The march in time: steps, their length, and the records they leave."""
