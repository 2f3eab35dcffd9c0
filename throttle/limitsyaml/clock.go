package limitsyaml

import (
	"slices"

	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// clockTimes are the fields of a rule that only have a meaning together: two expressions, and the
// time zone of both.
type clockTimes struct{ resets, active, timezone clockText }

// clockText is a field as it was written.
type clockText struct {
	field strictyaml.Field
	path  string
	text  string
}

// of returns the field of a name, nil if it is not one of them.
func (t *clockTimes) of(name string) *clockText {
	switch name {
	case "resets":
		return &t.resets
	case "active":
		return &t.active
	case "timezone":
		return &t.timezone
	}
	return nil
}

var clockWant = map[string]string{
	"resets":   `a cron expression, such as "0 0 * * *"`,
	"active":   `a cron expression, such as "* 8-19 * * 1-5"`,
	"timezone": "a time zone, such as UTC or America/Los_Angeles",
}

func (t *clockText) read(d decoder, e strictyaml.Field, path string) (s *policy.Source) {
	t.field, t.path = e, path
	t.text, s = d.words(e, path, clockWant[e.Name])
	return s
}

// compile makes the rule's calendar and hours from their texts. It leaves fields that do not go with
// the rule to package policy, which rejects them whatever their value. The zone is checked first,
// since without it an expression has no meaning.
func (t *clockTimes) compile(d decoder, r *policy.Rule, source *policy.Source) {
	if r.Unlimited {
		return
	}
	calendar := r.Algorithm == policy.Calendar || !slices.Contains(policy.Words("algorithm"), string(r.Algorithm))
	bad := func(text clockText, format string, args ...any) {
		source.Fields[text.field.Name] = d.bad(text.field, text.path, format, args...)
	}
	good := func(name string) bool { return source.Fields[name] != nil && !source.Fields[name].Bad }
	if good("timezone") && (calendar || source.Fields["active"] != nil) {
		if _, err := wallclock.Zone(t.timezone.text); t.timezone.text == "" {
			bad(t.timezone, "is empty; write UTC or America/Los_Angeles, or remove it for UTC")
		} else if err != nil {
			bad(t.timezone, "cannot be read: %v", err)
		}
	}
	zone := defaultTimezone
	if good("timezone") {
		zone = t.timezone.text
	}
	if good("resets") && calendar {
		if schedule, err := wallclock.Parse(t.resets.text, zone); err != nil {
			bad(t.resets, "cannot be read: %v", err)
		} else {
			r.Resets = schedule
		}
	}
	if good("active") {
		if window, err := wallclock.ParseWindow(t.active.text, zone); err != nil {
			bad(t.active, "cannot be heeded: %v", err)
		} else {
			r.Active = window
		}
	}
}
