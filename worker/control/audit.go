package control

import (
	"context"
	"log/slog"

	"github.com/headway-go/headway/throttle/policystore"
)

// audit logs a change of the limits with its actor: one line for each rule that changed.
func (s *Service) audit(ctx context.Context, who Actor, c Change, made policystore.Made) {
	attrs := func(scope, rule, before, after string) []slog.Attr {
		return []slog.Attr{
			slog.String("who", who.Name), slog.String("via", who.Via), slog.String("verb", string(c.Verb)),
			slog.String("scope", scope), slog.String("rule", rule), slog.String("before", before), slog.String("after", after),
			slog.String("reason", c.Reason), slog.Int64("version", made.Version.Number),
		}
	}
	for _, d := range made.Differences {
		s.log.LogAttrs(ctx, slog.LevelInfo, "limits changed", attrs(d.Scope, d.Rule, d.Before, d.After)...)
	}
	if len(made.Differences) == 0 {
		s.log.LogAttrs(ctx, slog.LevelInfo, "limits changed", attrs(c.Scope, c.Rule, "", "")...)
	}
}
