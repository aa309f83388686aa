# SPDX-License-Identifier: Apache-2.0
"""Agent sessions that continue after the death of any process, on the fences of the claims."""
