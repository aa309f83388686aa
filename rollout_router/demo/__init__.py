# SPDX-License-Identifier: Apache-2.0
"""The demonstration: rollouts played through kills of their owners, and the proof of what arrived.

``recorded`` and ``generated`` give rollouts, ``conversation`` says what each call asks, ``agent``
makes the calls, ``processes`` runs the product, ``play`` brings them together, ``proof`` compares
what was sent with what was captured, ``report`` counts. Nothing here prints.
"""
