# SPDX-License-Identifier: Apache-2.0
"""The sandbox side within an OpenAI client: a transport of its HTTP library, and no process."""
