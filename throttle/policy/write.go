package policy

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
)

// format returns the text of YAML.
func (p *Policy) format() []byte {
	w := policyWriter{}
	unmatched := p.unmatched
	if unmatched == "" {
		unmatched = UnmatchedDeny
	}
	w.line(0, "unmatched: "+string(unmatched))
	w.scopes(0, "limits", &p.root)
	return w.text.Bytes()
}

type policyWriter struct{ text bytes.Buffer }

func (w *policyWriter) line(indent int, s string) {
	for range indent {
		w.text.WriteString("  ")
	}
	w.text.WriteString(s)
	w.text.WriteByte('\n')
}

func (w *policyWriter) scopes(indent int, field string, t *tree) {
	names := slices.Collect(maps.Keys(t.scopes))
	if t.every != nil {
		names = append(names, anyName)
	}
	if len(names) == 0 {
		w.line(indent, field+": {}")
		return
	}
	slices.Sort(names)
	w.line(indent, field+":")
	for _, name := range names {
		child := t.scopes[name]
		if name == anyName {
			child = t.every
		}
		w.node(indent+1, yamlText(name), child)
	}
}

func (w *policyWriter) node(indent int, name string, t *tree) {
	if len(t.rules) == 0 && t.every == nil && len(t.scopes) == 0 && t.owner == "" && len(t.apps) == 0 && len(t.hosts) == 0 && t.pause == PauseInherited &&
		t.weight == 0 && len(t.shares) == 0 && t.maxPriority == nil && t.answers == "" {
		w.line(indent, name+": {}")
		return
	}
	w.line(indent, name+":")
	if t.owner != "" {
		w.line(indent+1, "owner: "+yamlText(t.owner))
	}
	w.names(indent+1, "apps", t.apps)
	w.names(indent+1, "hosts", t.hosts)
	if t.pause != PauseInherited {
		w.line(indent+1, "paused: "+string(t.pause))
	}
	if !t.until.IsZero() {
		w.line(indent+1, "paused_until: "+t.until.Format(time.RFC3339Nano))
	}
	if t.weight != 0 {
		w.line(indent+1, "weight: "+strconv.FormatInt(t.weight, 10))
	}
	if len(t.shares) > 0 {
		w.line(indent+1, "shares: "+SharesYAML(t.shares))
	}
	if t.maxPriority != nil {
		w.line(indent+1, "max_priority: "+strconv.Itoa(*t.maxPriority))
	}
	if t.answers != "" {
		w.line(indent+1, "answers: "+answersText(t.answers, t.corrects))
	}
	if len(t.rules) > 0 {
		w.line(indent+1, "rules:")
		for _, r := range t.rules {
			w.line(indent+2, "- "+yamlRule(r))
		}
	}
	if t.every != nil || len(t.scopes) > 0 {
		w.scopes(indent+1, "scopes", t)
	}
}

// names writes a list of names, unless it is empty.
func (w *policyWriter) names(indent int, field string, names []string) {
	if len(names) == 0 {
		return
	}
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = yamlText(name)
	}
	w.line(indent, field+": ["+strings.Join(texts, ", ")+"]")
}

// yamlRule returns a rule as it stands in limits.yaml, without its defaults.
func yamlRule(r Rule) string {
	var b strings.Builder
	put := func(f field, value string) { fmt.Fprintf(&b, ", %v: %s", f, value) }
	switch {
	case r.Unlimited:
		put(fieldUnlimited, "true")
	default:
		put(fieldAlgorithm, string(r.Algorithm))
		put(fieldLimit, strconv.FormatInt(r.Limit, 10))
	}
	if unit := r.unit(); unit != Requests && unit != "" {
		put(fieldUnit, yamlText(unit))
	}
	if r.Per != 0 {
		put(fieldPer, formatDuration(r.Per))
	}
	if r.Resets != "" {
		put(fieldResets, yamlText(r.Resets))
	}
	if r.Active != "" {
		put(fieldActive, yamlText(r.Active))
	}
	if r.Timezone != "" && r.Timezone != defaultTimezone {
		put(fieldTimezone, yamlText(r.Timezone))
	}
	if r.Rollover != 0 {
		put(fieldRollover, strconv.FormatInt(r.Rollover, 10))
	}
	if r.Spread {
		put(fieldSpread, "true")
	}
	if r.Burst > defaultBurst {
		put(fieldBurst, strconv.FormatInt(r.Burst, 10))
	}
	if r.Lease != 0 && r.Lease != defaultLease {
		put(fieldLease, formatDuration(r.Lease))
	}
	if r.OnRedisError != "" && r.OnRedisError != FailClosed {
		put(fieldOnRedisError, string(r.OnRedisError))
	}
	if r.Margin != 0 {
		put(fieldMargin, formatDuration(r.Margin))
	}
	if r.Prefetch != 0 {
		put(fieldPrefetch, formatDuration(r.Prefetch))
	}
	if r.MaxWait != 0 {
		put(fieldMaxWait, formatDuration(r.MaxWait))
	}
	if r.Shadow {
		put(fieldShadow, "true")
	}
	return "{name: " + yamlText(r.Name) + b.String() + "}"
}

var (
	plainText = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)
	// What some YAML reader takes for something other than text.
	reservedText = regexp.MustCompile(`(?i)^(y|n|yes|no|on|off|true|false|null)$`)
)

// yamlText returns s as a YAML scalar on one line that every reader takes for
// the text s, and no part of which any reader takes for anything else.
func yamlText(s string) string {
	if plainText.MatchString(s) && !reservedText.MatchString(s) {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08X`, r)
		default:
			fmt.Fprintf(&b, `\u%04X`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
