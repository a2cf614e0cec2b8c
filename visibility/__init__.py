"""Occlusion culling for servers."""
