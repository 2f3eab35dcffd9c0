package limitsyaml

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/headway-go/headway/internal/duration"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// Format returns a policy as a limits.yaml: names sorted, rules in their order, defaults left out. Equal policies have equal
// texts, and Parse reads the text back to an equal policy. It copies the whole policy.
func Format(p *policy.Policy) []byte {
	unmatched, limits := p.Limits()
	w := writer{}
	w.line(0, "unmatched: "+string(unmatched))
	w.scopes(0, "limits", limits)
	return w.text.Bytes()
}

type writer struct{ text bytes.Buffer }

func (w *writer) line(indent int, s string) {
	for range indent {
		w.text.WriteString("  ")
	}
	w.text.WriteString(s)
	w.text.WriteByte('\n')
}

func (w *writer) scopes(indent int, field string, scopes map[string]policy.ScopeConfig) {
	if len(scopes) == 0 {
		w.line(indent, field+": {}")
		return
	}
	w.line(indent, field+":")
	for _, name := range slices.Sorted(maps.Keys(scopes)) {
		w.scope(indent+1, yamlText(name), scopes[name])
	}
}

func (w *writer) scope(indent int, name string, s policy.ScopeConfig) {
	start := w.text.Len()
	w.line(indent, name+":")
	bare := w.text.Len()
	w.fields(indent+1, s)
	if w.text.Len() == bare {
		w.text.Truncate(start)
		w.line(indent, name+": {}")
	}
}

func (w *writer) fields(indent int, s policy.ScopeConfig) {
	put := func(field, value string, meant bool) {
		if meant {
			w.line(indent, field+": "+value)
		}
	}
	put("owner", yamlText(s.Owner), s.Owner != "")
	put("apps", yamlList(s.Apps), len(s.Apps) > 0)
	put("hosts", yamlList(s.Hosts), len(s.Hosts) > 0)
	put("envoy", yamlList(s.Envoy), len(s.Envoy) > 0)
	put("paused", string(s.Pause), s.Pause != policy.PauseInherited)
	put("paused_until", s.PausedUntil.Format(time.RFC3339Nano), !s.PausedUntil.IsZero())
	put("weight", strconv.FormatInt(s.Weight, 10), s.Weight != 0)
	put("shares", formatShares(s.Shares), len(s.Shares) > 0)
	put("pool", formatPool(s.Pool), len(s.Pool.Members) > 0)
	put("answers", FormatAnswers(s), s.Answers != "")
	put("breaker", FormatBreaker(s.Breaker), s.Breaker != policy.Breaker{})
	if len(s.Rules) > 0 {
		w.line(indent, "rules:")
		for _, r := range s.Rules {
			w.line(indent+1, "- "+FormatRule(r))
		}
	}
	if len(s.Tiers) > 0 {
		w.scopes(indent, "tiers", s.Tiers)
	}
	if len(s.Scopes) > 0 {
		w.scopes(indent, "scopes", s.Scopes)
	}
}

func yamlList(names []string) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = yamlText(name)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// Defaults that Format leaves out.
const (
	defaultBurst    = 1
	defaultLease    = 30 * time.Second
	defaultTimezone = "UTC"
	defaultWeight   = 1
)

// FormatRule returns a rule in its form in limits.yaml, on one line and without its defaults: {name: tenant, algorithm:
// token-bucket, limit: 20, per: 1s}. ParseRule reads it back.
func FormatRule(r policy.Rule) string {
	var b strings.Builder
	put := func(field, value string, meant bool) {
		if meant {
			b.WriteString(", " + field + ": " + value)
		}
	}
	put("unlimited", "true", r.Unlimited)
	put("algorithm", string(r.Algorithm), !r.Unlimited)
	put("limit", strconv.FormatInt(r.Limit, 10), !r.Unlimited)
	put("unit", yamlText(r.Unit), r.Unit != "" && r.Unit != policy.Requests)
	put("per", duration.Format(r.Per), r.Per != 0)
	put("opens_on_use", "true", r.OpensOnUse)
	zone := defaultTimezone
	if r.Resets != nil {
		put("resets", yamlText(r.Resets.Cron()), true)
		zone = r.Resets.Zone()
	}
	if r.Active != nil {
		put("active", yamlText(r.Active.Cron()), true)
		zone = r.Active.Zone()
	}
	put("timezone", yamlText(zone), zone != defaultTimezone)
	put("rollover", strconv.FormatInt(r.Rollover, 10), r.Rollover != 0)
	put("spread", "true", r.Spread)
	put("cap", strconv.FormatInt(r.Cap, 10)+"%", r.Cap != 0)
	put("burst", strconv.FormatInt(r.Burst, 10), r.Burst > defaultBurst)
	put("lease", duration.Format(r.Lease), r.Lease != 0 && r.Lease != defaultLease)
	put("on_redis_error", string(r.OnRedisError), r.OnRedisError != "" && r.OnRedisError != policy.FailClosed)
	put("margin", duration.Format(r.Margin), r.Margin != 0)
	put("max_wait", duration.Format(r.MaxWait), r.MaxWait != 0)
	put("shadow", "true", r.Shadow)
	put("vendor", yamlText(r.Vendor), r.Vendor != "")
	return "{name: " + yamlText(r.Name) + b.String() + "}"
}

// formatShares returns shares in their form in limits.yaml: {batch: {weight: 3}, interactive: {part: 60%}}; empty for none.
func formatShares(shares map[string]policy.Share) string {
	if len(shares) == 0 {
		return ""
	}
	names := slices.Sorted(maps.Keys(shares))
	for i, name := range names {
		names[i] = yamlText(name) + ": " + formatShare(shares[name])
	}
	return "{" + strings.Join(names, ", ") + "}"
}

func formatShare(s policy.Share) string {
	var fields []string
	if s.Guaranteed != 0 {
		fields = append(fields, "part: "+percents(s.Guaranteed))
	}
	if weight := max(s.Weight, defaultWeight); weight != defaultWeight || s.Guaranteed == 0 {
		fields = append(fields, "weight: "+strconv.FormatInt(weight, 10))
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// formatPool returns a pool in its form in limits.yaml: {members: [alice, {name: bob, weight: 2}], affinity: tenant}; empty for none.
func formatPool(p policy.Pool) string {
	if len(p.Members) == 0 {
		return ""
	}
	members := make([]string, len(p.Members))
	for i, m := range p.Members {
		members[i] = formatMember(m)
	}
	text := "{members: [" + strings.Join(members, ", ") + "]"
	if p.Choose != policy.ChooseSpread && p.Choose != "" {
		text += ", choose: " + string(p.Choose)
	}
	if p.Affinity != policy.AffinityNone {
		text += ", affinity: " + string(p.Affinity)
	}
	if p.AffinityWait != 0 {
		text += ", affinity_wait: " + duration.Format(p.AffinityWait)
	}
	if p.OverflowAfter != 0 {
		text += ", overflow_after: " + duration.Format(p.OverflowAfter)
	}
	if p.Quarantine != 0 {
		text += ", quarantine: " + duration.Format(p.Quarantine)
	}
	return text + "}"
}

func formatMember(m policy.Member) string {
	text := ""
	if m.Weight > defaultWeight {
		text += ", weight: " + strconv.FormatInt(m.Weight, 10)
	}
	if m.Priority != 0 {
		text += ", priority: " + strconv.FormatInt(m.Priority, 10)
	}
	if text == "" {
		return yamlText(m.Name)
	}
	return "{name: " + yamlText(m.Name) + text + "}"
}

// FormatAnswers returns a scope's answers in their form in limits.yaml: pause, or {cut: 30%, most: 150%}; empty if the scope has
// none.
func FormatAnswers(s policy.ScopeConfig) string {
	var fields []string
	c, usual := s.Corrects, policy.Corrects{}.WithDefaults()
	for i, n := range [][2]int64{{c.Cut, usual.Cut}, {c.Grow, usual.Grow}, {c.Least, usual.Least}, {c.Most, usual.Most}} {
		if n[0] != 0 && n[0] != n[1] {
			fields = append(fields, answersFields[i+1]+": "+percents(n[0]))
		}
	}
	if pause := s.Refusals.Pause; pause != 0 && pause != (policy.Refusals{}).WithDefaults().Pause {
		fields = append(fields, "pause: "+duration.Format(pause))
	}
	if s.Refusals.Count {
		fields = append(fields, "counts: true")
	}
	fields = append(fields, readingFields(s.Reading)...)
	switch dialect := s.Reading.Dialect; {
	case fields == nil && dialect == "":
		return string(s.Answers)
	case fields == nil && s.Answers == policy.AnswersHeed:
		return dialect
	case dialect != "":
		fields = append([]string{"dialect: " + dialect}, fields...)
	}
	if s.Answers != policy.AnswersHeed && s.Answers != "" {
		fields = append([]string{"mode: " + string(s.Answers)}, fields...)
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// readingFields returns the fields of answers that say how answers are read, but the dialect.
func readingFields(r policy.Reading) (fields []string) {
	if r.ResetUnit != "" {
		fields = append(fields, "unit: "+r.ResetUnit)
	}
	if len(r.Also) > 0 {
		cases := make([]string, len(r.Also))
		for i, c := range r.Also {
			cases[i] = formatCase(c)
		}
		fields = append(fields, "also: ["+strings.Join(cases, ", ")+"]")
	}
	if len(r.Reasons) > 0 {
		names := slices.Sorted(maps.Keys(r.Reasons))
		for i, name := range names {
			names[i] = yamlText(name) + ": " + yamlText(r.Reasons[name])
		}
		fields = append(fields, "reasons: {"+strings.Join(names, ", ")+"}")
	}
	return fields
}

// formatCase returns a row of also in its form in limits.yaml: {status: 403, body: "secondary rate limit", wait: 1m}.
func formatCase(c upstream.Case) string {
	var fields []string
	put := func(name, value string, meant bool) {
		if meant {
			fields = append(fields, name+": "+value)
		}
	}
	put("status", strconv.Itoa(c.Status), c.Status != 0)
	put("header", yamlText(c.Header), c.Header != "")
	put("body", yamlText(c.Body), c.Body != "")
	put("json", yamlText(c.JSON), c.JSON != "")
	put("means", string(c.Means), c.Means != "" && c.Means != upstream.Limited)
	put("wait", duration.Format(c.Wait), c.Wait != 0)
	put("scope", yamlText(c.Scope), c.Scope != "")
	put("burns", "true", c.Burns)
	put("counts", "true", c.Counts)
	return "{" + strings.Join(fields, ", ") + "}"
}

// FormatBreaker returns a breaker in its form in limits.yaml: {failures: 50%, wait: 1m}; empty if it is none. Defaults are left
// out, but for the part of failures.
func FormatBreaker(b policy.Breaker) string {
	if b == (policy.Breaker{}) {
		return ""
	}
	b, usual := b.WithDefaults(), policy.Breaker{Shadow: true}.WithDefaults()
	fields := []string{"failures: " + percents(b.Failures)}
	put := func(field, value string, meant bool) {
		if meant {
			fields = append(fields, field+": "+value)
		}
	}
	put("of", strconv.FormatInt(b.Of, 10), b.Of != usual.Of)
	put("in", duration.Format(b.In), b.In != usual.In)
	put("probe", strconv.FormatInt(b.Probe, 10), b.Probe != usual.Probe)
	put("wait", duration.Format(b.Wait), b.Wait != usual.Wait)
	put("retry", "false", b.KeepAttempts)
	put("shadow", "true", b.Shadow)
	return "{" + strings.Join(fields, ", ") + "}"
}

func percents(n int64) string { return strconv.FormatInt(n, 10) + "%" }

var (
	plainText = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)
	// reservedText matches the words that some YAML readers do not read as text.
	reservedText = regexp.MustCompile(`(?i)^(y|n|yes|no|on|off|true|false|null)$`)
)

// yamlText returns s as a YAML scalar on one line. Every reader reads it as the text s, and no part of it as anything else.
func yamlText(s string) string {
	if plainText.MatchString(s) && !reservedText.MatchString(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\U%08X`, r)
		}
	}
	return `"` + b.String() + `"`
}
