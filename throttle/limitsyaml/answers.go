package limitsyaml

import (
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// answers reads the value of answers of a scope: a word, or fields.
func (d decoder) answers(s *policy.ScopeConfig, e strictyaml.Field, path string) (source *policy.Source) {
	if e.Value.Kind != yaml.MappingNode {
		text, from := word[policy.Answers]("answers")(d, e, path)
		s.Answers = text
		return from
	}
	source = mappingAt(e.Place())
	readFields(d, e.Value, s, source, path, "answers", answersFields, answersReaders)
	if len(e.Value.Content) == 0 {
		d.bad(e, path, "is empty; write heed, or fields such as {cut: 15%%}")
	}
	return source
}

var answersReaders = map[string]reader[policy.ScopeConfig]{
	"mode":   into(word[policy.Answers]("answers.mode"), func(s *policy.ScopeConfig) *policy.Answers { return &s.Answers }),
	"cut":    into(decoder.percent, func(s *policy.ScopeConfig) *int64 { return &s.Corrects.Cut }),
	"grow":   into(decoder.percent, func(s *policy.ScopeConfig) *int64 { return &s.Corrects.Grow }),
	"least":  into(decoder.percent, func(s *policy.ScopeConfig) *int64 { return &s.Corrects.Least }),
	"most":   into(decoder.percent, func(s *policy.ScopeConfig) *int64 { return &s.Corrects.Most }),
	"pause":  into(decoder.duration, func(s *policy.ScopeConfig) *time.Duration { return &s.Refusals.Pause }),
	"counts": into(decoder.flag, func(s *policy.ScopeConfig) *bool { return &s.Refusals.Count }),
	"unit":   into(word[string]("answers.unit"), func(s *policy.ScopeConfig) *string { return &s.Reading.ResetUnit }),

	"dialect": into(word[string]("answers.dialect"), func(s *policy.ScopeConfig) *string { return &s.Reading.Dialect }),
	"also":    into(decoder.cases, func(s *policy.ScopeConfig) *[]upstream.Case { return &s.Reading.Also }),
	"reasons": into(decoder.reasons, func(s *policy.ScopeConfig) *map[string]string { return &s.Reading.Reasons }),
}

// cases reads the rows of also.
func (d decoder) cases(e strictyaml.Field, path string) (cases []upstream.Case, source *policy.Source) {
	const want = `answers, such as [{status: 403, body: "secondary rate limit", wait: 60s}]`
	source = sourceAt(e.Place(), "", false)
	if !d.Is(e, yaml.SequenceNode, path, want) {
		return nil, source
	}
	cases, source.Items = make([]upstream.Case, len(e.Value.Content)), make([]*policy.Source, len(e.Value.Content))
	for i, n := range e.Value.Content {
		at := path + "[" + strconv.Itoa(i) + "]"
		if !d.Is(strictyaml.Field{Label: "the answer", Key: n, Value: n}, yaml.MappingNode, at, "its fields, such as {status: 403, wait: 60s}") {
			source.Items[i] = sourceAt(strictyaml.PlaceOf(n), "", true)
			continue
		}
		source.Items[i] = mappingAt(strictyaml.PlaceOf(n))
		readFields(d, n, &cases[i], source.Items[i], at, "an answer", caseFields, caseReaders)
	}
	if len(e.Value.Content) == 0 {
		d.bad(e, path, "is empty; write "+want+", or remove the line")
	}
	return cases, source
}

var caseReaders = map[string]reader[upstream.Case]{
	"status": into(decoder.status, func(c *upstream.Case) *int { return &c.Status }),
	"header": into(answerText, func(c *upstream.Case) *string { return &c.Header }),
	"body":   into(answerText, func(c *upstream.Case) *string { return &c.Body }),
	"json":   into(answerText, func(c *upstream.Case) *string { return &c.JSON }),
	"means":  into(word[upstream.Meaning]("answers.also.means"), func(c *upstream.Case) *upstream.Meaning { return &c.Means }),
	"wait":   into(decoder.duration, func(c *upstream.Case) *time.Duration { return &c.Wait }),
	"scope":  into(waitingScope, func(c *upstream.Case) *string { return &c.Scope }),
	"burns":  into(decoder.flag, func(c *upstream.Case) *bool { return &c.Burns }),
	"counts": into(decoder.flag, func(c *upstream.Case) *bool { return &c.Counts }),
}

func answerText(d decoder, e strictyaml.Field, path string) (string, *policy.Source) {
	text, source := d.words(e, path, "a text of the answer, in quotes")
	if !source.Bad && text == "" {
		source = d.bad(e, path, "is empty; write a text of the answer, or remove it")
	}
	return text, source
}

func waitingScope(d decoder, e strictyaml.Field, path string) (string, *policy.Source) {
	return d.words(e, path, "here, top, or a level such as payments/*")
}

func (d decoder) status(e strictyaml.Field, path string) (int, *policy.Source) {
	n, source := d.number(e, path)
	return int(max(min(n, 1000), -1)), source
}

// reasons reads which scopes wait for limits that answers name.
func (d decoder) reasons(e strictyaml.Field, path string) (map[string]string, *policy.Source) {
	const want = "the vendor's names of limits, such as {endpoint-rate: here, global-rate: top}"
	source := mappingAt(e.Place())
	if !d.Is(e, yaml.MappingNode, path, want) {
		return nil, source
	}
	reasons := map[string]string{}
	for _, f := range d.Fields(e.Value, path) {
		reasons[f.Name], source.Fields[f.Name] = waitingScope(d, f, diag.PathTo(path, f.Name))
	}
	if len(reasons) == 0 {
		d.bad(e, path, "is empty; write "+want+", or remove the line")
	}
	return reasons, source
}
