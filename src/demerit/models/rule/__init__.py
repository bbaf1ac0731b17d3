"""Rules: rewards computed from an episode's signals by a formula of signal temporal logic."""

from demerit.models.rule.model import LiveRule, Rule, RuleConfig, RuleGate, RuleSignal

__all__ = ["LiveRule", "Rule", "RuleConfig", "RuleGate", "RuleSignal"]
