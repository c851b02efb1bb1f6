"""Hooks decide. They may wait and call out; they never see the wire."""
