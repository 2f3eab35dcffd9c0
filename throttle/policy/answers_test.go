package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// "answers" takes a word, or fields: what stands at a level replaces all that stands above it, and what is left out has its
// default. It is written as short as it can be, and read back.
func TestAnswersInNumbers(t *testing.T) {
	t.Parallel()
	said := mustParse(t, `
limits:
  p:
    answers: {cut: 30%, grow: 5%, least: 20%, most: 150%}
    rules: [{name: r, algorithm: sliding-window, limit: 10, per: 1s}]
    scopes:
      "*": {answers: {most: 200%}}
      word: {answers: heed}
      deaf: {answers: {mode: ignore}, scopes: {not: {answers: {mode: heed, grow: 2%, most: 300%}}}}
      plain: {answers: {cut: 15%, most: 100%, pause: 1s}}
      slow: {answers: {mode: pause, pause: 30s, counts: true, unit: ms}}
  q: {rules: [{name: r, algorithm: sliding-window, limit: 10, per: 1s}]}
`)
	type want struct {
		answers  policy.Answers
		corrects policy.Corrects
		text     string // of the level itself
	}
	own, defaults := policy.Corrects{30, 5, 20, 150}, policy.Corrects{15, 2, 10, 100}
	for scope, want := range map[string]want{
		"p": {policy.AnswersHeed, own, "{cut: 30%, grow: 5%, least: 20%, most: 150%}"}, "q": {policy.AnswersHeed, defaults, ""},
		"p/any": {policy.AnswersHeed, policy.Corrects{15, 2, 10, 200}, ""}, "p/any/below": {policy.AnswersHeed, policy.Corrects{15, 2, 10, 200}, ""},
		"p/word": {policy.AnswersHeed, defaults, "heed"}, "p/deaf": {policy.AnswersIgnore, defaults, "ignore"},
		"p/slow": {policy.AnswersPause, defaults, "{mode: pause, pause: 30s, counts: true, unit: ms}"}, "p/slow/below": {policy.AnswersPause, defaults, ""},
		"p/deaf/not": {policy.AnswersHeed, policy.Corrects{15, 2, 10, 300}, "{most: 300%}"}, "p/plain": {policy.AnswersHeed, defaults, "heed"},
	} {
		s := mustScope(t, scope)
		for _, p := range []*policy.Policy{said, mustParse(t, string(limitsyaml.Format(said)))} {
			if a, c := p.Answers(s), p.Corrects(s); a != want.answers || c != want.corrects {
				t.Errorf("%s: %s, %+v", scope, a, c)
			}
			refusals, unit := policy.Refusals{Pause: time.Second}, time.Duration(0)
			if strings.HasPrefix(scope, "p/slow") {
				refusals, unit = policy.Refusals{Pause: 30 * time.Second, Count: true}, time.Millisecond
			}
			if got, in := p.Refusals(s), p.ResetUnit(s); got != refusals || in != unit {
				t.Errorf("%s: %+v, resets in %v", scope, got, in)
			}
		}
		_, limits := said.Limits()
		n, there := policy.ScopeConfig{Scopes: limits}, true
		for _, name := range s.Names() {
			if n, there = n.Scopes[name]; !there {
				break
			}
		}
		if text := limitsyaml.FormatAnswers(n); there && text != want.text {
			t.Errorf("%s is written as %q", scope, text)
		}
	}
	if !said.RaisesLimits() || mustParse(t, `limits: {p: {answers: {most: 100%}}}`).RaisesLimits() {
		t.Error("whether a policy raises limits is not seen")
	}
}

// Faults of answers: a row is what stands there, at 1:23.
func TestAnswersFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"always":                     `1:23: limits.a.answers: answers is "always"; write ` + diag.OneOf(policy.Words("answers")),
		"{}":                         `1:23: limits.a.answers: answers is empty; write heed, or fields such as {cut: 15%}`,
		"{mode: heeds}":              `1:30: limits.a.answers: mode is "heeds"; did you mean heed?`,
		"{cuts: 5%}":                 `1:24: limits.a.answers.cuts: cuts is not a field of answers; did you mean cut?`,
		"{cut: 5}":                   `1:29: limits.a.answers.cut: cut is the number 5; write whole percents, such as 60%`,
		"{cut: 0%}":                  `1:29: limits.a.answers.cut: cut is 0%; it must be 1% to 90%`,
		"{most: 99%}":                `1:30: limits.a.answers.most: most is 99%; it must be 100% to 1000%`,
		"{pause: 10ms}":              `1:31: limits.a.answers.pause: pause is 10ms; the least is 100ms`,
		"{pause: 6m}":                `1:31: limits.a.answers.pause: pause is 6m; the most is 5m`,
		"{pause: 30}":                `1:31: limits.a.answers.pause: pause is the number 30, which has no unit; write 30s if seconds are meant`,
		"{unit: us}":                 `1:30: limits.a.answers.unit: unit is "us"; did you mean ms?`,
		"{counts: 1}":                `1:32: limits.a.answers.counts: counts is the number 1; write true, or remove the line`,
		"{mode: ignore, pause: 1m}":  `1:45: limits.a.answers.pause: pause says what follows from an answer, and with ignore nothing does; remove it, or write pause`,
		"{mode: pause, cut: 5%}":     `1:42: limits.a.answers.cut: cut says how rules are corrected, and with pause none is; remove it, or write heed`,
		"{mode: ignore, most: 200%}": `1:44: limits.a.answers.most: most says how rules are corrected, and with ignore none is; remove it, or write heed`,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			checkFaults(t, "limits: {a: {answers: "+text+"}}\n", want)
		})
	}
	_, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"a": {Corrects: policy.Corrects{Cut: 91}}, "b": {Answers: policy.AnswersPause, Corrects: policy.Corrects{Cut: 10}}})
	if want := "policy: limits.a.answers.cut: cut is 91%; it must be 1% to 90%\n" +
		"policy: limits.b.answers.cut: cut says how rules are corrected, and with pause none is; remove it, or write heed"; err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
