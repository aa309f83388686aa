# SPDX-License-Identifier: Apache-2.0
"""The gateway as a service: composition, the worker process, the supervisor. Reads settings."""
