package checker

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// Algorithms, as limits.yaml names them.
const (
	tokenBucket   = "token-bucket"
	slidingWindow = "sliding-window"
	fixedWindow   = "fixed-window"
	concurrency   = "concurrency"
	calendar      = "calendar"
)

// Limits is a limits.yaml as the checker reads it.
type Limits struct {
	root  *node
	allow bool // unmatched: allow
}

// node is one level of the file, or two of them laid over each other.
type node struct {
	rules  []rule
	scopes map[string]*node
	pause  *pause // what it says of one, nil where it says nothing
}

// pause is whether a scope is paused by hand, and until when; zero is for good.
type pause struct {
	on    bool
	until time.Time
}

// at says whether nothing may start at a moment.
func (p *pause) at(t time.Time) bool {
	return p != nil && p.on && (p.until.IsZero() || t.Before(p.until))
}

type rule struct {
	name, algorithm string
	limit, burst    int64
	per             time.Duration
	margin          time.Duration
	onUse           bool   // a fixed window that begins with its first unit
	resets          string // of a calendar, whose periods clock finds
	clock           *clock
	rollover        int64
	unit            string // what it counts of costs by unit
	active          string // its hours, which hours finds; always where it is nil
	hours           *clock
	unlimited       bool
	shadow          bool // it holds nobody
}

// bound is a rule with the scope at which it counts.
type bound struct {
	scope string
	rule  rule
}

// ParseLimits reads the text of a limits.yaml. It refuses whatever it does not know, because a bound that it overlooked would
// pass unchecked; it is no validator beyond that.
func ParseLimits(data []byte) (*Limits, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("checker: limits: %w", err)
	}
	if len(doc.Content) != 1 {
		return nil, errors.New("checker: limits: the file is empty")
	}
	l := &Limits{root: &node{}}
	err := fields(doc.Content[0], func(key string, v *yaml.Node) error {
		var err error
		switch key {
		case "unmatched":
			l.allow = v.Value == "allow"
			if v.Value != "allow" && v.Value != "deny" {
				err = fmt.Errorf("unmatched: %q", v.Value)
			}
		case "limits":
			l.root.scopes, err = readScopes(v)
		default:
			err = fmt.Errorf("unknown field %q", key)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("checker: limits: %w", err)
	}
	return l, nil
}

// fields calls f for each entry of a mapping; an alias stands for its anchor.
func fields(n *yaml.Node, f func(key string, v *yaml.Node) error) error {
	n = follow(n)
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: want a mapping", n.Line)
	}
	for i := 0; i < len(n.Content); i += 2 {
		key, v := n.Content[i], follow(n.Content[i+1])
		if key.Tag == "!!merge" {
			return fmt.Errorf("line %d: the checker does not follow merge keys", key.Line)
		}
		if err := f(follow(key).Value, v); err != nil {
			return fmt.Errorf("line %d: %w", key.Line, err)
		}
	}
	return nil
}

func follow(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func readScopes(n *yaml.Node) (map[string]*node, error) {
	scopes := map[string]*node{}
	return scopes, fields(n, func(name string, v *yaml.Node) error {
		under := &node{}
		scopes[name] = under
		return fields(v, func(key string, v *yaml.Node) error {
			var err error
			switch key {
			case "rules":
				under.rules, err = readRules(v)
			case "scopes":
				under.scopes, err = readScopes(v)
			case "paused":
				err = v.Decode(&under.paused().on)
			case "paused_until":
				under.paused().until, err = time.Parse(time.RFC3339Nano, v.Value)
			case "weight", "shares", "owner", "apps", "hosts", "envoy", "answers", "breaker": // say who starts, not how many
			default:
				err = fmt.Errorf("unknown field %q", key)
			}
			return err
		})
	})
}

// paused is what the node says of a pause, to be written to.
func (n *node) paused() *pause {
	if n.pause == nil {
		n.pause = &pause{}
	}
	return n.pause
}

func readRules(n *yaml.Node) ([]rule, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("rules: want a list")
	}
	var rules []rule
	for _, item := range n.Content {
		r, err := readRule(item)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func readRule(n *yaml.Node) (rule, error) {
	r := rule{burst: 1, limit: -1, unit: requests}
	timezone := "UTC"
	err := fields(n, func(key string, v *yaml.Node) error {
		var err error
		switch key {
		case "name":
			r.name = v.Value
		case "algorithm":
			r.algorithm = v.Value
		case "limit":
			err = v.Decode(&r.limit)
		case "burst":
			err = v.Decode(&r.burst)
		case "per":
			r.per, err = readDuration(v.Value)
		case "opens_on_use":
			err = v.Decode(&r.onUse)
		case "resets":
			r.resets = v.Value
		case "active":
			r.active = v.Value
		case "unit":
			r.unit = v.Value
		case "timezone":
			timezone = v.Value
		case "rollover":
			err = v.Decode(&r.rollover)
		case "shadow":
			err = v.Decode(&r.shadow)
		case "unlimited":
			err = v.Decode(&r.unlimited)
		case "margin": // matters to a bucket alone, whose burst may be too small for it
			r.margin, err = readDuration(v.Value)
		case "lease", "on_redis_error", "max_wait", "spread", "cap": // change when a call starts, not what is allowed
		default:
			err = fmt.Errorf("unknown field %q", key)
		}
		return err
	})
	if err != nil || r.unlimited {
		return r, err
	}
	windowed := r.algorithm == tokenBucket || r.algorithm == slidingWindow || r.algorithm == fixedWindow
	switch {
	case r.name == "":
		return r, fmt.Errorf("line %d: a rule without a name", n.Line)
	case !windowed && r.algorithm != concurrency && r.algorithm != calendar:
		return r, fmt.Errorf("line %d: unknown algorithm %q", n.Line, r.algorithm)
	case r.limit < 0 || r.burst < 1 || windowed != (r.per > 0) || (r.algorithm == calendar) != (r.resets != ""):
		return r, fmt.Errorf("line %d: rule %q: limit %d, burst %d, per %v", n.Line, r.name, r.limit, r.burst, r.per)
	}
	if r.algorithm == calendar {
		if r.clock, err = readClock(r.resets, timezone); err != nil {
			return r, fmt.Errorf("line %d: rule %q: %w", n.Line, r.name, err)
		}
	}
	if r.active != "" {
		if r.hours, err = readHours(r.active, timezone); err != nil {
			return r, fmt.Errorf("line %d: rule %q: %w", n.Line, r.name, err)
		}
	}
	if r.limit == 0 {
		r.burst = 0 // 0 suspends: nothing may start, no burst either
	}
	return r, nil
}

// readDuration reads a Go duration or whole days, "30d".
func readDuration(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseInt(days, 10, 32)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(s)
}

// lay returns over laid over base: rules of the same name are replaced, the others stay, and so on below. Either may be nil.
func lay(base, over *node) *node {
	switch {
	case base == nil:
		return over
	case over == nil:
		return base
	}
	both := &node{rules: slices.Clone(base.rules), scopes: map[string]*node{}, pause: cmp.Or(over.pause, base.pause)}
	for _, r := range over.rules {
		same := func(b rule) bool { return b.name == r.name }
		if i := slices.IndexFunc(both.rules, same); i >= 0 {
			both.rules[i] = r
		} else {
			both.rules = append(both.rules, r)
		}
	}
	for name := range base.scopes {
		both.scopes[name] = lay(base.scopes[name], over.scopes[name])
	}
	for name := range over.scopes {
		both.scopes[name] = lay(base.scopes[name], over.scopes[name])
	}
	return both
}

// way is what a scope meets.
type way struct {
	bounds []bound // outermost first
	pauses []*pause
	denied bool // but for a pause it may not be called at all
}

// paused says whether any level of the way is paused at a moment.
func (w way) paused(t time.Time) bool {
	return slices.ContainsFunc(w.pauses, func(p *pause) bool { return p.at(t) })
}

// match returns what a scope meets.
func (l *Limits) match(scope string) way {
	w := way{denied: !l.allow}
	at := l.root
	names := strings.Split(scope, "/")
	for i, name := range names {
		at = lay(at.scopes["*"], at.scopes[name])
		if at == nil {
			break
		}
		w.pauses = append(w.pauses, at.pause)
		for _, r := range at.rules {
			w.denied = false
			if !r.unlimited && !r.shadow {
				w.bounds = append(w.bounds, bound{strings.Join(names[:i+1], "/"), r})
			}
		}
	}
	return w
}
