package throttle

import (
	"fmt"

	"github.com/headway-go/headway/throttle/strictyaml"
)

// Answers says what follows from what an API says of its limits; see Limiter.Heed.
type Answers string

// What may follow from an API's answers.
const (
	AnswersHeed   Answers = "heed"   // pauses, and corrections of rules
	AnswersPause  Answers = "pause"  // pauses alone
	AnswersIgnore Answers = "ignore" // nothing
)

var answersWords = []string{string(AnswersHeed), string(AnswersPause), string(AnswersIgnore)}

// checkAnswers checks what is to follow from answers.
func (s *draftScope) checkAnswers(path string, faults *strictyaml.Faults) Answers {
	a := Answers(s.answers.text)
	switch {
	case !s.answers.good():
		return ""
	case a != AnswersHeed && a != AnswersPause && a != AnswersIgnore:
		faults.Add(s.answers.at, path+".answers", fmt.Sprintf("answers is %s; %s", quote(s.answers.text), strictyaml.Meant(s.answers.text, answersWords)))
		return ""
	}
	return a
}

// Answers returns what follows from an API's answers to a scope's calls: what its lowest
// level says that says anything, and AnswersHeed where none does.
func (p *Policy) Answers(s Scope) Answers {
	out := AnswersHeed
	p.visit(s, func(_ Scope, layers []*tree) {
		for _, layer := range layers {
			if layer.answers != "" {
				out = layer.answers
			}
		}
	})
	return out
}
