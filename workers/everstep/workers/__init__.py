"""Processes: controller worker, analyzer, agent, local cluster; settings and registry."""
