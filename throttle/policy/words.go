package policy

import "slices"

// words has, for each field of limits.yaml that takes one of a few words, these words. The parser, its
// messages and the schema for editors all take them from here.
var words = map[string][]string{
	"unmatched":      {string(UnmatchedDeny), string(UnmatchedFail), string(UnmatchedAllow)},
	"algorithm":      {string(TokenBucket), string(SlidingWindow), string(FixedWindow), string(Concurrency), string(Calendar)},
	"on_redis_error": {string(FailClosed), string(FailOpen), string(FailShare)},
	"answers":        {string(AnswersHeed), string(AnswersRefusals), string(AnswersPause), string(AnswersIgnore)},
	"answers.unit":   {"s", "ms"},
}

// Words returns the words that a field of limits.yaml takes: unmatched, algorithm, on_redis_error,
// answers or answers.unit. It returns nil for a field that takes other values.
func Words(field string) []string { return slices.Clone(words[field]) }

// RuleFields returns the names of the fields of a rule in limits.yaml.
func RuleFields() []string { return slices.Clone(fieldNames) }

// FieldsNotWith returns the fields of a rule that do not go with an algorithm.
func FieldsNotWith(a Algorithm) (names []string) {
	for _, row := range company {
		if !slices.Contains(row.algorithms, a) {
			names = append(names, row.field.String())
		}
	}
	return names
}
