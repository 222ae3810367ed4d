"""What of a result may be published: rounding, and which numbers reveal individuals."""
