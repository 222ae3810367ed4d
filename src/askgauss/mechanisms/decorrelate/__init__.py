"""Decorrelation: releases of correlated noise turned back into independent noise."""
