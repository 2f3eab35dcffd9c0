package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// checkReport is one line of "worker limits check -json"; docs/json.md has its fields.
type checkReport struct {
	File  string `json:"file"`
	Level string `json:"level"` // fault or warning
	Line  int    `json:"line,omitempty"`
	// Column counts characters from 1.
	Column int    `json:"column,omitempty"`
	Scope  string `json:"scope,omitempty"`
	Rule   string `json:"rule,omitempty"`
	Text   string `json:"text"`
}

// check prints what is wrong with files, and what is odd in those that have no fault.
func (c *limitsCommand) check(_ context.Context) error {
	faults, warnings := 0, 0
	for _, path := range c.words {
		rules, err := limitsyaml.Load(path)
		var refused *policy.Error
		switch {
		case errors.As(err, &refused):
			for _, f := range refused.Faults {
				faults++
				if err := c.print(checkReport{File: path, Level: "fault", Line: f.Line, Column: f.Column, Text: f.String()}, lineOf(path, f)); err != nil {
					return err
				}
			}
			continue
		case err != nil:
			return limitsUnread(path, err)
		}
		for _, w := range throttle.Lint(rules) {
			warnings++
			r := checkReport{File: path, Level: "warning", Scope: w.Scope, Rule: w.Rule, Text: w.Reason}
			if err := c.print(r, fmt.Sprintf("%s: warning: %s", path, w)); err != nil {
				return err
			}
		}
	}
	if faults > 0 || c.strict && warnings > 0 {
		return errDifferent // which has been printed
	}
	return nil
}

// lineOf is a fault as editors jump to it.
func lineOf(path string, f policy.Fault) string {
	if f.Line == 0 {
		return path + ": " + f.String()
	}
	return path + ":" + f.String()
}
