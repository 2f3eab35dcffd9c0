// Package strictyaml reads a configuration file as nothing but what it says: one
// document of plain YAML in UTF-8, without anchors, aliases, merge keys or tags, each name
// once. It collects everything that is wrong with a file, each with its line and column and
// what to do about it, so that a person mends it in one go.
//
// It knows no format: who reads one says which fields it has. limits.yaml is read by package
// throttle/policy, schedules.yaml by package queue/schedule.
package strictyaml
