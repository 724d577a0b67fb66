//! From the template library's syntax tree to one whose operators are ours.
//!
//! The library's virtual machine has operators of its own, which differ from Python's in places and can be asked for
//! any amount of memory. Lowering replaces each by a call of its function in `ops`; names, scopes, loops, macros and
//! `and`/`or` stay the library's. The functions are constants in the tree, so no template can reach or shadow them.

use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, BinOpKind, CallArg, CompareOpKind, Expr, Spanned, Stmt};

use super::TemplateError;
use super::methods::is_method_name;
use super::ops::{self, Native, Operator};

/// The most elements in one literal or arguments in one lowered call.
const MAX_ELEMENTS: usize = 4_096;
/// Holds what `{% set namespace.name %}…{% endset %}` captures; no template can spell it.
const CAPTURED: &str = "=captured";

/// `template` with its operators replaced.
pub(super) fn lower<'s>(template: &Stmt<'s>) -> Result<Stmt<'s>, TemplateError> {
    match template {
        Stmt::Template(template) => {
            let children = body(&template.children)?;
            Ok(Stmt::Template(Spanned::new(ast::Template { children }, template.span())))
        }
        _ => Err(unsupported("a statement outside a template", Span::default())),
    }
}

fn unsupported(what: &str, span: Span) -> TemplateError {
    TemplateError::Syntax { line: usize::from(span.start_line), message: what.to_owned() }
}

fn body<'s>(statements: &[Stmt<'s>]) -> Result<Vec<Stmt<'s>>, TemplateError> {
    let mut out = Vec::with_capacity(statements.len());
    for statement in statements {
        lower_statement(statement, &mut out)?;
    }
    Ok(out)
}

fn lower_statement<'s>(statement: &Stmt<'s>, out: &mut Vec<Stmt<'s>>) -> Result<(), TemplateError> {
    let lowered = match statement {
        Stmt::EmitExpr(emit) => self::emit(expr(&emit.expr)?, emit.span()),
        // Text goes through the formatter too, so that what a block captures is charged.
        Stmt::EmitRaw(raw) => self::emit(constant(Value::from(raw.raw), raw.span()), raw.span()),
        Stmt::ForLoop(node) => {
            // A filter is applied before looping, as in Jinja, where `loop.length` counts what is left.
            let iter = call("iter", ops::iterable, vec![expr(&node.iter)?], node.iter.span());
            let filter_expr = node.filter_expr.as_ref().map(expr).transpose()?;
            Stmt::ForLoop(Spanned::new(
                ast::ForLoop {
                    target: target(&node.target)?,
                    iter,
                    filter_expr,
                    recursive: node.recursive,
                    body: body(&node.body)?,
                    else_body: body(&node.else_body)?,
                },
                node.span(),
            ))
        }
        Stmt::IfCond(node) => Stmt::IfCond(Spanned::new(
            ast::IfCond {
                expr: expr(&node.expr)?,
                true_body: body(&node.true_body)?,
                false_body: body(&node.false_body)?,
            },
            node.span(),
        )),
        Stmt::WithBlock(node) => {
            let assignments = node.assignments.iter().map(|(to, from)| Ok((target(to)?, expr(from)?)));
            let assignments = assignments.collect::<Result<_, TemplateError>>()?;
            Stmt::WithBlock(Spanned::new(ast::WithBlock { assignments, body: body(&node.body)? }, node.span()))
        }
        Stmt::Set(node) => match &node.target {
            Expr::GetAttr(attribute) => emit(set_attribute(attribute, expr(&node.expr)?)?, node.span()),
            other => Stmt::Set(Spanned::new(ast::Set { target: target(other)?, expr: expr(&node.expr)? }, node.span())),
        },
        Stmt::SetBlock(node) => {
            let span = node.span();
            let filter = node.filter.as_ref().map(expr).transpose()?;
            let (to, store) = match &node.target {
                Expr::GetAttr(attribute) => {
                    let captured = || Expr::Var(Spanned::new(ast::Var { id: CAPTURED }, span));
                    (captured(), Some(emit(set_attribute(attribute, captured())?, span)))
                }
                other => (target(other)?, None),
            };
            out.push(Stmt::SetBlock(Spanned::new(ast::SetBlock { target: to, filter, body: body(&node.body)? }, span)));
            match store {
                Some(store) => store,
                None => return Ok(()),
            }
        }
        Stmt::FilterBlock(node) => Stmt::FilterBlock(Spanned::new(
            ast::FilterBlock { filter: expr(&node.filter)?, body: body(&node.body)? },
            node.span(),
        )),
        Stmt::Macro(node) => Stmt::Macro(lower_macro(node)?),
        Stmt::CallBlock(node) => Stmt::CallBlock(Spanned::new(
            ast::CallBlock { call: lower_call(&node.call)?, macro_decl: lower_macro(&node.macro_decl)? },
            node.span(),
        )),
        Stmt::Continue(node) => Stmt::Continue(Spanned::new(ast::Continue, node.span())),
        Stmt::Break(node) => Stmt::Break(Spanned::new(ast::Break, node.span())),
        Stmt::AutoEscape(node) => return Err(unsupported("`autoescape` has no place in a chat template", node.span())),
        Stmt::Block(node) => return Err(unsupported("`block` has no place in a chat template", node.span())),
        Stmt::Extends(node) => return Err(unsupported("a chat template cannot extend another", node.span())),
        Stmt::Include(node) => return Err(unsupported("a chat template cannot include another", node.span())),
        Stmt::Import(node) => return Err(unsupported("a chat template cannot import another", node.span())),
        Stmt::FromImport(node) => return Err(unsupported("a chat template cannot import another", node.span())),
        Stmt::Do(node) => return Err(unsupported("unknown statement do", node.span())),
        Stmt::Template(node) => return Err(unsupported("a template inside a template", node.span())),
    };
    out.push(lowered);
    Ok(())
}

fn emit(expr: Expr<'_>, span: Span) -> Stmt<'_> {
    Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, span))
}

fn set_attribute<'s>(attribute: &Spanned<ast::GetAttr<'s>>, value: Expr<'s>) -> Result<Expr<'s>, TemplateError> {
    let span = attribute.span();
    let name = constant(Value::from(attribute.name), span);
    Ok(call("set_attribute", ops::set_attribute, vec![expr(&attribute.expr)?, name, value], span))
}

/// What is assigned to: names, and lists of names.
fn target<'s>(target: &Expr<'s>) -> Result<Expr<'s>, TemplateError> {
    match target {
        Expr::Var(var) => Ok(Expr::Var(Spanned::new(ast::Var { id: var.id }, var.span()))),
        Expr::List(list) => {
            let items = list.items.iter().map(self::target).collect::<Result<_, _>>()?;
            Ok(Expr::List(Spanned::new(ast::List { items }, list.span())))
        }
        other => Err(unsupported("an attribute can only be assigned to alone", other.span())),
    }
}

/// A macro whose defaults are assigned at the start of its body, in order: a default may name an argument before it.
fn lower_macro<'s>(node: &Spanned<ast::Macro<'s>>) -> Result<Spanned<ast::Macro<'s>>, TemplateError> {
    let span = node.span();
    let args = node.args.iter().map(target).collect::<Result<_, _>>()?;
    let mut lowered = Vec::with_capacity(node.defaults.len() + node.body.len());
    let without_default = node.args.len().saturating_sub(node.defaults.len());
    for (arg, default) in node.args.iter().skip(without_default).zip(&node.defaults) {
        let is_undefined = ast::Test { name: "undefined", expr: target(arg)?, args: Vec::new() };
        let assign = ast::Set { target: target(arg)?, expr: expr(default)? };
        let condition = ast::IfCond {
            expr: Expr::Test(Spanned::new(is_undefined, span)),
            true_body: vec![Stmt::Set(Spanned::new(assign, span))],
            false_body: Vec::new(),
        };
        lowered.push(Stmt::IfCond(Spanned::new(condition, span)));
    }
    lowered.extend(body(&node.body)?);
    Ok(Spanned::new(ast::Macro { name: node.name, args, defaults: Vec::new(), body: lowered }, span))
}

fn exprs<'s>(list: &[Expr<'s>]) -> Result<Vec<Expr<'s>>, TemplateError> {
    list.iter().map(expr).collect()
}

fn expr<'s>(node: &Expr<'s>) -> Result<Expr<'s>, TemplateError> {
    let span = node.span();
    Ok(match node {
        Expr::Var(var) => Expr::Var(Spanned::new(ast::Var { id: var.id }, span)),
        Expr::Const(value) => constant(value.value.clone(), span),
        Expr::Slice(slice) => {
            let bound = |bound: &Option<Expr<'s>>| match bound {
                Some(bound) => expr(bound),
                None => Ok(constant(Value::from(()), span)),
            };
            let args = vec![expr(&slice.expr)?, bound(&slice.start)?, bound(&slice.stop)?, bound(&slice.step)?];
            call("slice", ops::slice, args, span)
        }
        Expr::UnaryOp(unary) => match unary.op {
            ast::UnaryOpKind::Not => {
                let op = ast::UnaryOpKind::Not;
                Expr::UnaryOp(Spanned::new(ast::UnaryOp { op, expr: expr(&unary.expr)? }, span))
            }
            ast::UnaryOpKind::Neg => call("-", ops::negate, vec![expr(&unary.expr)?], span),
        },
        Expr::BinOp(binary) => lower_binary(binary)?,
        Expr::Compare(compare) => {
            let mut args = vec![expr(&compare.expr)?];
            for op in &compare.ops {
                args.push(constant(Value::from(spelling(op.op)), span));
                args.push(expr(&op.expr)?);
            }
            call("compare", ops::compare_chain, within(args, span)?, span)
        }
        Expr::IfExpr(node) => Expr::IfExpr(Spanned::new(
            ast::IfExpr {
                test_expr: expr(&node.test_expr)?,
                true_expr: expr(&node.true_expr)?,
                false_expr: node.false_expr.as_ref().map(expr).transpose()?,
            },
            span,
        )),
        Expr::Filter(filter) => Expr::Filter(Spanned::new(
            ast::Filter {
                name: filter.name,
                expr: filter.expr.as_ref().map(expr).transpose()?,
                args: call_args(&filter.args)?,
            },
            span,
        )),
        Expr::Test(test) => Expr::Test(Spanned::new(
            ast::Test { name: test.name, expr: expr(&test.expr)?, args: call_args(&test.args)? },
            span,
        )),
        Expr::GetAttr(attribute) if is_method_name(attribute.name) => {
            let name = constant(Value::from(attribute.name), span);
            call("attribute", ops::attribute, vec![expr(&attribute.expr)?, name], span)
        }
        Expr::GetAttr(attribute) => {
            Expr::GetAttr(Spanned::new(ast::GetAttr { expr: expr(&attribute.expr)?, name: attribute.name }, span))
        }
        Expr::GetItem(item) => call("item", ops::item, vec![expr(&item.expr)?, expr(&item.subscript_expr)?], span),
        Expr::Call(node) => Expr::Call(lower_call(node)?),
        Expr::List(list) => call("list", ops::build_list, within(exprs(&list.items)?, span)?, span),
        Expr::Tuple(tuple) => call("tuple", ops::build_tuple, within(exprs(&tuple.items)?, span)?, span),
        Expr::Map(map) => {
            let mut args = Vec::with_capacity(map.keys.len() * 2);
            for (key, value) in map.keys.iter().zip(&map.values) {
                args.extend([expr(key)?, expr(value)?]);
            }
            call("dict", ops::build_dict, within(args, span)?, span)
        }
    })
}

fn lower_binary<'s>(binary: &Spanned<ast::BinOp<'s>>) -> Result<Expr<'s>, TemplateError> {
    let span = binary.span();
    let (name, function): (&'static str, Operator) = match binary.op {
        BinOpKind::ScAnd | BinOpKind::ScOr => {
            let lowered = ast::BinOp { op: binary.op, left: expr(&binary.left)?, right: expr(&binary.right)? };
            return Ok(Expr::BinOp(Spanned::new(lowered, span)));
        }
        BinOpKind::Add => ("+", ops::add),
        BinOpKind::Concat => ("~", ops::concat),
        BinOpKind::Sub => ("-", ops::subtract),
        BinOpKind::Mul => ("*", ops::multiply),
        BinOpKind::Div => ("/", ops::divide),
        BinOpKind::FloorDiv => ("//", ops::floor_divide),
        BinOpKind::Rem => ("%", ops::modulo),
        BinOpKind::Pow => ("**", ops::power),
        BinOpKind::Eq => ("==", ops::eq),
        BinOpKind::Ne => ("!=", ops::ne),
        BinOpKind::Lt => ("<", ops::lt),
        BinOpKind::Lte => ("<=", ops::le),
        BinOpKind::Gt => (">", ops::gt),
        BinOpKind::Gte => (">=", ops::ge),
        BinOpKind::In => ("in", ops::contained),
    };
    // `a + b + c` becomes one call, so that joining n strings copies each once.
    let mut terms = vec![expr(&binary.right)?];
    let mut left = &binary.left;
    if matches!(binary.op, BinOpKind::Add | BinOpKind::Concat) {
        while let Expr::BinOp(inner) = left {
            match (inner.op, binary.op) {
                (BinOpKind::Add, BinOpKind::Add) | (BinOpKind::Concat, BinOpKind::Concat) => {}
                _ => break,
            }
            terms.push(expr(&inner.right)?);
            left = &inner.left;
        }
    }
    terms.push(expr(left)?);
    terms.reverse();
    Ok(call(name, function, within(terms, span)?, span))
}

fn spelling(op: CompareOpKind) -> &'static str {
    match op {
        CompareOpKind::Eq => "==",
        CompareOpKind::Ne => "!=",
        CompareOpKind::Lt => "<",
        CompareOpKind::Lte => "<=",
        CompareOpKind::Gt => ">",
        CompareOpKind::Gte => ">=",
        CompareOpKind::In => "in",
        CompareOpKind::NotIn => "not in",
    }
}

fn lower_call<'s>(node: &Spanned<ast::Call<'s>>) -> Result<Spanned<ast::Call<'s>>, TemplateError> {
    let span = node.span();
    let mut args = call_args(&node.args)?;
    let callee = match &node.expr {
        Expr::GetAttr(method) => {
            match method.name {
                // The library divides by the number of arguments.
                "cycle" if args.is_empty() => {
                    return Err(unsupported("cycle() needs something to cycle through", span));
                }
                // The library would compare containers itself, without a bound.
                "changed" => {
                    args = args
                        .into_iter()
                        .map(|arg| with(arg, |value| call("repr", ops::representation, vec![value], span)))
                        .collect();
                }
                _ => {}
            }
            Expr::GetAttr(Spanned::new(ast::GetAttr { expr: expr(&method.expr)?, name: method.name }, method.span()))
        }
        // `loop(children)`, of a recursive loop, loops over its argument.
        Expr::Var(var) if var.id == "loop" => {
            args =
                args.into_iter().map(|arg| with(arg, |value| call("iter", ops::iterable, vec![value], span))).collect();
            expr(&node.expr)?
        }
        other => expr(other)?,
    };
    Ok(Spanned::new(ast::Call { expr: callee, args }, span))
}

/// A positional argument changed; others are kept.
fn with<'s>(arg: CallArg<'s>, change: impl Fn(Expr<'s>) -> Expr<'s>) -> CallArg<'s> {
    match arg {
        CallArg::Pos(value) => CallArg::Pos(change(value)),
        other => other,
    }
}

fn call_args<'s>(args: &[CallArg<'s>]) -> Result<Vec<CallArg<'s>>, TemplateError> {
    let lower = |arg: &CallArg<'s>| {
        Ok(match arg {
            CallArg::Pos(value) => CallArg::Pos(expr(value)?),
            CallArg::Kwarg(name, value) => CallArg::Kwarg(name, expr(value)?),
            CallArg::PosSplat(value) => {
                CallArg::PosSplat(call("iter", ops::iterable, vec![expr(value)?], value.span()))
            }
            CallArg::KwargSplat(value) => CallArg::KwargSplat(expr(value)?),
        })
    };
    args.iter().map(lower).collect()
}

fn within(elements: Vec<Expr<'_>>, span: Span) -> Result<Vec<Expr<'_>>, TemplateError> {
    let line = usize::from(span.start_line);
    match elements.len() {
        0..=MAX_ELEMENTS => Ok(elements),
        _ => Err(TemplateError::TooComplex { line, what: "elements in one expression", max: MAX_ELEMENTS }),
    }
}

fn constant<'s>(value: Value, span: Span) -> Expr<'s> {
    Expr::Const(Spanned::new(ast::Const { value }, span))
}

/// A call of one of our functions on `args`.
fn call<'s>(name: &'static str, function: Operator, args: Vec<Expr<'s>>, span: Span) -> Expr<'s> {
    let callee = constant(Native::value(name, function), span);
    Expr::Call(Spanned::new(ast::Call { expr: callee, args: args.into_iter().map(CallArg::Pos).collect() }, span))
}
