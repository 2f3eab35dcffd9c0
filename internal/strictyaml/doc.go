// Package strictyaml reads a configuration file without guessing: one document of plain YAML in
// UTF-8, without anchors, aliases, merge keys or tags, each name once. It collects every fault of a
// file, with its line and column and what to do about it, so that all of them can be corrected at
// once.
//
// It knows no format: the caller defines the fields. Package throttle/limitsyaml reads limits.yaml
// with it, package queue/schedule schedules.yaml.
package strictyaml
