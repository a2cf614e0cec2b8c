from __future__ import annotations

from django import forms
from django.utils.translation import gettext_lazy as _

from project.demo.models import Message, Post


class Text(forms.Form):
    """One line of text."""

    text = forms.CharField(max_length=500, error_messages={"required": _("Write something first.")})


class PostForm(Text):
    text = forms.CharField(
        max_length=Post._meta.get_field("text").max_length, error_messages={"required": _("Write something first.")}
    )


class MessageForm(Text):
    text = forms.CharField(
        max_length=Message._meta.get_field("text").max_length, error_messages={"required": _("Write something first.")}
    )
