package checker

import (
	"errors"
	"fmt"
	"os"
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
}

type rule struct {
	name, algorithm string
	limit, burst    int64
	per             time.Duration
	resets          string // of a calendar, whose periods clock finds
	clock           *clock
	rollover        int64
	unlimited       bool
	shadow          bool // it holds nobody
}

// bound is a rule with the scope at which it counts.
type bound struct {
	scope string
	rule  rule
}

// LoadLimits reads a limits.yaml from disk.
func LoadLimits(path string) (*Limits, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("checker: %w", err)
	}
	l, err := ParseLimits(data)
	if err != nil {
		return nil, fmt.Errorf("%w (in %s)", err, path)
	}
	return l, nil
}

// ParseLimits reads the text of a limits.yaml. It refuses whatever it does not
// know, because a bound that it overlooked would pass unchecked; it is no
// validator beyond that.
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
			default:
				err = fmt.Errorf("unknown field %q", key)
			}
			return err
		})
	})
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
	r := rule{burst: 1, limit: -1}
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
		case "resets":
			r.resets = v.Value
		case "timezone":
			timezone = v.Value
		case "rollover":
			err = v.Decode(&r.rollover)
		case "shadow":
			err = v.Decode(&r.shadow)
		case "unlimited":
			err = v.Decode(&r.unlimited)
		case "lease", "on_redis_error", "margin", "max_wait", "spread": // change when a call starts, not what is allowed
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

// lay returns over laid over base: rules of the same name are replaced, the
// others stay, and so on below. Either may be nil.
func lay(base, over *node) *node {
	switch {
	case base == nil:
		return over
	case over == nil:
		return base
	}
	both := &node{rules: slices.Clone(base.rules), scopes: map[string]*node{}}
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

// match returns the rules under which a scope stands, outermost first, and
// whether it may be called at all.
func (l *Limits) match(scope string) ([]bound, bool) {
	var bounds []bound
	matched := l.allow
	at := l.root
	names := strings.Split(scope, "/")
	for i, name := range names {
		at = lay(at.scopes["*"], at.scopes[name])
		if at == nil {
			break
		}
		for _, r := range at.rules {
			matched = true
			if !r.unlimited && !r.shadow {
				bounds = append(bounds, bound{strings.Join(names[:i+1], "/"), r})
			}
		}
	}
	return bounds, matched
}
