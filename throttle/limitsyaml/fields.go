package limitsyaml

import (
	"cmp"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// PausedField is the name of a scope's pause among its Fields.
const PausedField = "paused:"

// The texts of a pause. One with an end is "paused until" and the time.
const (
	Paused  = "paused"
	Resumed = "not paused"
)

const listComma = ", "

// field is a field of a scope beside its rules. set sets it to what text returns.
type field struct {
	name string // as limits.yaml has it; no rule's name has a colon
	text func(policy.ScopeConfig) string
	set  func(s *policy.ScopeConfig, text string) error
}

var textFields = []field{
	{
		"owner:", func(s policy.ScopeConfig) string { return s.Owner },
		func(s *policy.ScopeConfig, text string) error { s.Owner = text; return nil },
	},
	{
		"apps:", func(s policy.ScopeConfig) string { return strings.Join(s.Apps, listComma) },
		func(s *policy.ScopeConfig, text string) error { s.Apps = listOf(text); return nil },
	},
	{
		"hosts:", func(s policy.ScopeConfig) string { return strings.Join(s.Hosts, listComma) },
		func(s *policy.ScopeConfig, text string) error { s.Hosts = listOf(text); return nil },
	},
	{
		"envoy:", func(s policy.ScopeConfig) string { return strings.Join(s.Envoy, listComma) },
		func(s *policy.ScopeConfig, text string) error { s.Envoy = listOf(text); return nil },
	},
	{PausedField, pauseText, setPause},
	{"weight:", weightText, setWeight},
	{"shares:", func(s policy.ScopeConfig) string { return formatShares(s.Shares) }, setShares},
	{"pool:", func(s policy.ScopeConfig) string { return formatPool(s.Pool) }, setPool},
	{"answers:", FormatAnswers, setAnswers},
	{"breaker:", func(s policy.ScopeConfig) string { return FormatBreaker(s.Breaker) }, setBreaker},
}

// Fields iterates over the fields of a scope beside its rules: the name of each with its colon, which no rule's name has, and its content
// as text. Empty fields are left out.
func Fields(s policy.ScopeConfig) iter.Seq2[string, string] {
	return func(yield func(name, text string) bool) {
		for _, f := range textFields {
			if text := f.text(s); text != "" && !yield(f.name, text) {
				return
			}
		}
	}
}

// Field returns the text of one of the Fields, and whether name is that of a field.
func Field(s policy.ScopeConfig, name string) (text string, is bool) {
	i := slices.IndexFunc(textFields, func(f field) bool { return f.name == name })
	if i < 0 {
		return "", false
	}
	return textFields[i].text(s), true
}

// SetField sets one of the Fields to its text, as Fields has it; an empty text removes it. A pause gets no end. It reports whether name is
// that of a field. The error is that of the text.
func SetField(s *policy.ScopeConfig, name, text string) (is bool, err error) {
	i := slices.IndexFunc(textFields, func(f field) bool { return f.name == name })
	if i < 0 {
		return false, nil
	}
	return true, textFields[i].set(s, text)
}

func listOf(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, listComma)
}

func pauseText(s policy.ScopeConfig) string {
	switch {
	case s.Pause == policy.PauseOff:
		return Resumed
	case s.Pause == policy.PauseInherited:
		return ""
	case s.PausedUntil.IsZero():
		return Paused
	}
	return "paused until " + s.PausedUntil.UTC().Format("2006-01-02T15:04:05.000Z07:00")
}

func setPause(s *policy.ScopeConfig, text string) error {
	pauses := map[string]policy.Pause{Paused: policy.PauseOn, Resumed: policy.PauseOff}
	s.Pause, s.PausedUntil = pauses[text], time.Time{}
	return nil
}

func weightText(s policy.ScopeConfig) string {
	if s.Weight == 0 {
		return ""
	}
	return strconv.FormatInt(s.Weight, 10)
}

func setWeight(s *policy.ScopeConfig, text string) (err error) {
	s.Weight, err = strconv.ParseInt(cmp.Or(text, "0"), 10, 64)
	return err
}

func setShares(s *policy.ScopeConfig, text string) error {
	read, err := parseField("shares", text)
	s.Shares = read.Shares
	return err
}

func setPool(s *policy.ScopeConfig, text string) error {
	read, err := parseField("pool", text)
	s.Pool = read.Pool
	return err
}

// parseField reads the text of one field of a scope, as Fields has it; an empty text is none.
func parseField(name, text string) (policy.ScopeConfig, error) {
	if text == "" {
		return policy.ScopeConfig{}, nil
	}
	p, err := Parse(name, []byte("limits: {x: {"+name+": "+text+"}}"))
	if err != nil {
		return policy.ScopeConfig{}, err
	}
	_, limits := p.Limits()
	return limits["x"], nil
}
